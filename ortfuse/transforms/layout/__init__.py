"""Choose an axis order for each region of a graph, so that the fewest elements are transposed.

Transposes are moved through operators that can be written for another order of axes, merged where they meet, and folded
into constants. Those are left that graph inputs and outputs, convolutions and other operators with a fixed order need.
The order of each region is the one with the fewest elements to transpose (`assign_axis_orders`). A change is made only if it
leaves no more Transposes, and no more elements to be moved whatever the sizes. A graph without Transposes is not touched.
Among equal costs, positions are chosen at which convolutions can fuse with their neighbours, or that have fewer axes
(`transpose_tie_break`).

A Transpose that moves only axes of size 1 costs nothing, as it is a Reshape. One that swaps the last two axes in front
of a MatMul costs nothing either, as the runtime merges the two.
"""
