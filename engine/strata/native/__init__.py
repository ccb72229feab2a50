"""Routed experts on the CPU: C++ kernels for AVX2, AVX-512 and AVX-512-VNNI in one library, and what calls them.

``layout``: how an expert lies in host memory. ``tiles``: from a store's parts to that and back. ``pool``: the threads
that compute. ``mailbox``: how a GPU asks them. ``cores``: where the threads run. No module imports torch; tensors come
as addresses.
"""
