"""Geometry of the drawings. Templates write it as SVG; colours and fonts are the style sheet's."""
