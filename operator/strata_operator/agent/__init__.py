"""The node agent: what the cards and the host of one node are, and what the models on it want of them."""
