"""When what is learned from whom on the path with a teacher. Pure.

The steps of a recipe are shared: the teacher's come first, then the student's. The student's begin
with stage 1 (towards the teacher, under the teacher's frozen head), go through a cosine transition and
end with stage 2 (towards the target, everything free to move).
"""

from __future__ import annotations

import math

from draft_service.training.recipe import Recipe


def teacher_recipe(recipe: Recipe) -> Recipe:
    """The teacher's run: the same net and losses, its part of the steps."""
    steps = min(max(round(recipe.teacher_fraction * recipe.steps), 1), recipe.steps - 1)
    return recipe.model_copy(update={"steps": steps, "path": "teacher_free"})


def student_recipe(recipe: Recipe) -> Recipe:
    """The student's run. It is warm when it meets the target, so no part of it has KL in place of L1."""
    steps = recipe.steps - teacher_recipe(recipe).steps
    return recipe.model_copy(update={"steps": steps, "kl_fraction": 0.0})


def target_share(step: int, student: Recipe) -> float:
    """How much of the loss is towards the target: 0 in stage 1, 1 in stage 2, a cosine in between."""
    begin = student.distil_fraction * student.steps
    length = student.transition_fraction * student.steps
    if step < begin:
        return 0.0
    if step >= begin + length:
        return 1.0
    return 0.5 * (1.0 - math.cos(math.pi * (step - begin) / length))


def is_head_frozen(step: int, student: Recipe) -> bool:
    """The teacher's head stays until stage 2 begins."""
    return target_share(step, student) < 1.0
