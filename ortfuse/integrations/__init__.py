"""ortfuse as a part of other tools: a pass for Olive, and what stands in for the `ORTOptimizer` of Optimum.

Nothing here is imported unless it is asked for: `ortfuse.integrations.olive` needs Olive (`pip install 'ortfuse[olive]'`).
"""
