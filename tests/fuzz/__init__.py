"""Random and hostile input: generators of models, mutations of model files, and the judge of what comes out."""
