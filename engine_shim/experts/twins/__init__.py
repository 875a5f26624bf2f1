"""The expert kernels once more, in Triton: slower, and short enough to be read beside the specification."""
