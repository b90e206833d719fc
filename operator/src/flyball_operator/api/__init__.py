"""PURE. The InferenceService: models, names, quantities, conditions and the CRD made from them."""
