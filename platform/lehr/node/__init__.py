"""What runs on a GPU node: agent, shim, shipper, uploader, fetcher and the files of an attempt."""
