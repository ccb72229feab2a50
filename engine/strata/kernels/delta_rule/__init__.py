"""The gated delta rule: linear attention whose state is a matrix for each head.

For each token: S = exp(g) S, then S += k (beta (v - S^T k))^T, and S^T q is what it reads
(https://arxiv.org/abs/2412.06464). Queries and keys have length 1, queries then come times 1 / sqrt(key_dim). Before
that queries, keys and values pass a short causal convolution of each channel.
"""
