"""The items nearest to each user by an index of faiss, where all scores are too many to compute."""

import torch
from torch import Tensor


def check_faiss() -> None:
    """End with what to install where faiss is missing."""
    try:
        import faiss  # noqa: F401
    except ImportError as error:
        raise SystemExit(
            f'--nearest faiss: {error}; pip install "gigl_loader[nearest]", which is faiss-cpu'
        ) from error


def nearest_items(
    users: Tensor, items: Tensor, known: Tensor, number: int, index: str = "Flat"
) -> Tensor:
    """Return the items with the largest inner product with each user, but for those it knows.

    Known items would take the places of others, so as many more are looked up as any user knows.

    Args:
        users: ``[num_users, dim]`` float32.
        items: ``[num_items, dim]`` float32.
        known: ``[2, n]`` links, user and item.
        number: Items for each user.
        index: What faiss builds, as ``faiss.index_factory`` reads it: ``"Flat"`` compares all;
            ``"HNSW32"`` or ``"IVF256,Flat"`` compare some, and may miss a few.

    Returns:
        ``[num_users, number]`` int64, best first; -1 where the index found no more.
    """
    import faiss

    dim, num_items = users.size(1), items.size(0)
    known = known.unique(dim=1)
    most = int(torch.bincount(known[0], minlength=1).max())
    searched = faiss.index_factory(dim, index, faiss.METRIC_INNER_PRODUCT)
    rows = items.contiguous().numpy()
    searched.train(rows)
    searched.add(rows)
    _, found = searched.search(users.contiguous().numpy(), min(number + most, num_items))
    best = torch.from_numpy(found)
    links = torch.arange(len(users))[:, None] * num_items + best
    wrong = (best < 0) | torch.isin(links, known[0] * num_items + known[1])
    best = best.masked_fill(wrong, -1).gather(1, wrong.int().argsort(dim=1, stable=True))
    missing = torch.full((len(users), max(number - best.size(1), 0)), -1)
    return torch.cat([best, missing], dim=1)[:, :number]
