"""NVLink transport of the Experts port: CUDA kernels that use the memory of all ranks of one host.

`region` says which bytes lie where, `peers` makes ranks see each other's memory, `library` builds the kernels in
`csrc`, `params` is what they are given, `experts` is the port. `csrc/README.md` draws who waits for whom.
"""
