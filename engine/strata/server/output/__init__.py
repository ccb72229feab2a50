"""What a model's text means: its reasoning, its answer, and its calls of tools, told apart while the text arrives."""
