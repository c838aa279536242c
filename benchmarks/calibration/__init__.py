"""Does what `ortfuse calibrate` measures choose what measuring every site would?"""
