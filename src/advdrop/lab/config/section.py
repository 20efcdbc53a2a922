"""The base of every section of the configuration, and the numbers that its options may have. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):  # pydantic would read True as 1
        raise PydanticCustomError("number", "Input should be a number")
    return value


MOST = 10**9
"""No number of updates, units or images is larger."""

Number = Annotated[float, BeforeValidator(_no_bool)]
Share = Annotated[Number, Field(ge=0.0, le=1.0)]
BelowOne = Annotated[Number, Field(ge=0.0, lt=1.0)]
Positive = Annotated[Number, Field(gt=0.0)]
NotNegative = Annotated[Number, Field(ge=0.0)]
Whole = Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=MOST)]
Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=MOST)]
Seed = Annotated[int, BeforeValidator(_no_bool), Field(ge=0, lt=2**62)]  # torch counts with 64 bits


class Section(BaseModel):
    """A part of the configuration. Unknown keys are refused, and values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, str_max_length=4096)
