"""What is called in place of the functions of torch that choose: choices are decided by values and then by tangents.

What is chosen is a piece, a smooth function of the operands, which torch applies to dual tensors::

    maximum(x, y) at x = y = 3, where x moves by 1 and y by 2, is y

so that forward mode gives the one-sided derivative, and reverse mode the gradient of the piece. Each function has the
signature of its namesake in torch, and its values, but for those that jump: ``x > 0`` at 0 is what it is a small step
on. The ops of jaxclamp that select or have kinks are not written here: `records.py` derives their choices.
"""
