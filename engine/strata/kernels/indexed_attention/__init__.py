"""Attention to few tokens, which an indexer chooses by groups of neighbours.

A group's index key is the mean of its tokens', normalised and turned to the position of its first. A token at position
p scores the (p + 1) // group_size whole groups up to its own: the sum over index heads of relu(query . key), over
sqrt(head_dim). It attends to the tokens of the ``top`` best groups, and to those behind the last whole one.
"""
