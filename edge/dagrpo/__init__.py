"""DA-GRPO on paper: every equation one pure function, standard library only.

Source: Chen, Fang, Wang, Brinton, "Joint Continual Learning of Local Language Models and Cloud Offloading Decisions with Budget
Constraints". Where the paper is open, DECISIONS.md records what was chosen and why.
"""
