"""What is seen of a service, with "could not observe" as a value of its own."""
