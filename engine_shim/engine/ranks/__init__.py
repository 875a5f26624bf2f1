"""Expert-parallel rank processes of one reference engine: started, watched, stepped in lockstep, torn down together."""
