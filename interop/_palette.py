"""What all pictures share: the palette of Okabe and Ito, which is told apart by colour-blind readers too."""

BLUE, GREEN, SKY, PURPLE, VERMILLION = "#0072B2", "#009E73", "#56B4E9", "#CC79A7", "#D55E00"
ORANGE, YELLOW = "#E69F00", "#F0E442"
GRID_ALPHA = 0.3
