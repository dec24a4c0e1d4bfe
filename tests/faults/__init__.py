# SPDX-License-Identifier: Apache-2.0
"""Faults that users of other fusing compilers met in public: each case, and its kind, must be right here.

A test is named after the kind of fault. Cases run in the interpreter with tiny shapes, and on the GPU (marker ``gpu``)
with the shapes that showed the fault.
"""
