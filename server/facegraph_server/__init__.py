"""What serves facegraph: the steps' functions, the model builder and the embedded Triton."""
