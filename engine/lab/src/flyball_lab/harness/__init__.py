"""Real parts for tests and benches: started, spoken to and stopped; and what is made up to drive them."""
