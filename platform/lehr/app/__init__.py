"""What a request may do: services, presenters, alerts, reports and the W&B mirror."""
