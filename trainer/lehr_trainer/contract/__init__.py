"""What the trainer and the platform exchange: records, orders, folder layout, manifests."""
