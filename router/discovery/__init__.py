"""Who is there, where no shim says so in the store: files, plain vLLM servers, Kubernetes."""
