"""What every part of a configuration is made of: sections, and kinds of numbers."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from edge.core.rates import rate_of

Rate = Annotated[float, BeforeValidator(rate_of), Field(json_schema_extra={"minimum": 0.0, "maximum": 1.0})]
"""Also written as 30 %."""
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class Section(BaseModel):
    """A frozen group of settings that rejects unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, protected_namespaces=())
