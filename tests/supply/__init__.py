"""What the images are made of: locked packages, their licences, known vulnerabilities, a bill of materials."""
