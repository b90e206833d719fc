"""Wrong inputs and what is answered: the list that the tests go through, and that docs/wrong-inputs.md is made of."""
