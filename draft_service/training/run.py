"""A training run: with a teacher or without, a drafter or a net to compare it with.

The run's folder is described in loop.py; on the two-stage path it has a folder `teacher/` for the
teacher's own run, whose `checkpoint/` is never served.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from draft_service.model import DraftModel
from draft_service.training.data import TrainingData
from draft_service.training.history_objective import HistoryObjective
from draft_service.training.loop import STORE_DTYPES, Run, RunOptions, Setting, Trained, Watch
from draft_service.training.objective import DrafterObjective, StudentObjective, TeacherObjective
from draft_service.training.preparation import Prepared, as_teacher, prepare
from draft_service.training.provenance import provenance
from draft_service.training.ranks import join_ranks
from draft_service.training.recipe import Recipe
from draft_service.training.teacher import TeacherModel
from draft_service.training.two_stage import student_recipe, teacher_recipe
from draft_service.weights import fingerprint
from protos.errors import InvalidRequest

TEACHER = "teacher"


def train(recipe: Recipe, options: RunOptions, watch: Watch) -> int:
    """Trains up to the recipe's last step; returns the steps done.

    Raises:
        InvalidRequest, NotFound, ContractMismatch: inputs do not fit together, or the folder holds
            another run.
    """
    if options.store_dtype not in STORE_DTYPES:
        raise InvalidRequest(f"{options.store_dtype!r} is none of {sorted(STORE_DTYPES)}", field="--store")
    data = TrainingData(options.data, recipe.target_layer_ids, recipe.held_out_fraction)
    return train_on(data, recipe, options, watch).steps


def train_on(data: TrainingData, recipe: Recipe, options: RunOptions, watch: Watch) -> Trained:
    """As `train`, with data that is open already (its layers are the recipe's)."""
    torch.set_num_threads(options.threads)
    ranks = join_ranks(options.device)
    prepared = prepare(recipe, data, options.target, options.init_from, options.device)
    start = "" if options.init_from is None else fingerprint(options.init_from)
    document = provenance(recipe, data, start)
    if recipe.path == "two_stage":
        return _two_stages(prepared, recipe, options, Setting(document, ranks, watch))
    objective_type = DrafterObjective if recipe.net == "dlite" else HistoryObjective
    objective = objective_type(prepared.frozen, data, recipe)
    return Run(prepared, objective, recipe, options, Setting(document, ranks, watch)).to_its_end()


def _two_stages(prepared: Prepared, recipe: Recipe, options: RunOptions, setting: Setting) -> Trained:
    """The teacher's run to its end, then the student's; each goes on where it was."""
    first, second = teacher_recipe(recipe), student_recipe(recipe)
    data, frozen = prepared.data, prepared.frozen
    folder = replace(options, out=options.out / TEACHER)
    named = replace(setting, document={**setting.document, "role": TEACHER})
    objective = TeacherObjective(frozen, data, first)
    taught = Run(as_teacher(prepared, recipe), objective, first, folder, named).to_its_end()
    if not taught.is_done:
        return taught
    teacher = taught.model
    assert isinstance(teacher, TeacherModel)
    student = prepared.model
    assert isinstance(student, DraftModel)
    student.sequential_head.load_state_dict(teacher.sequential_head.state_dict())
    left = options.stop_after and max(options.stop_after - taught.new_steps, 0)
    if options.stop_after and not left:
        return replace(taught, is_done=False)
    rest = replace(options, stop_after=left)
    run = Run(prepared, StudentObjective(frozen, data, second, teacher), second, rest, setting)
    found = run.to_its_end()
    return replace(found, steps=first.steps + found.steps)
