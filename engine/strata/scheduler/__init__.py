"""Which request runs next; ids only, no tensors."""
