"""How many machines a graph needs, and how many seeds per second they give: before renting any."""
