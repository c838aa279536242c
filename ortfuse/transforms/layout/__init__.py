"""Chooses an order of axes for each region of a graph, so that as little as possible is transposed.

Transposes are moved through operators that can be written for another order of axes, merged where they meet, and folded
into constants. Those are left that graph inputs and outputs, convolutions and other operators with a fixed order need.
The order of each region is the one with the fewest elements to transpose (`choice`). A change is made only if it
leaves no more Transposes, and no more elements to be moved whatever the sizes; a graph without Transposes is not touched.
Among equal costs, those positions are chosen at which convolutions can take in what is beside them, or that have fewer axes
(`beside`).

A Transpose that moves only axes of size 1 costs nothing, as it is a Reshape. One that swaps the last two axes in front
of a MatMul costs nothing either, as the runtime merges the two.
"""
