"""Does quality notice what is known to be wrong, and say what it is?"""
