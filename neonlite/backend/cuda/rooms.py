"""How are images brought to where their maps lie side by side, and back?  By a kernel that turns tiles.

cuDNN convolves images (N, D, H, W, C), and filters (K, T, R, S, C), faster than in any other order. Pooling and
normalization need no kernels for that order: it does not matter to them which axis counts images, and which maps.
"""

from __future__ import annotations

from typing import Any

from neonlite.backend.cuda.kernels import BLOCKS
from neonlite.backend.cuda.launching import Launching
from neonlite.backend.cuda.words import fill
from neonlite.backend.stored import Form, Images, brought, form_of, read_images

SIDE = 32  # of a tile

TURN = fill(
    """
// Images (maps, pixels, images) to (images, pixels, maps), or back. A block turns tiles by way of shared memory: some
// pixels' maps, which lie side by side in a room, of some images, which do so in order.
extern "C" __global__ void __launch_bounds__(256) kernel(
    Element* to, const Element* from, Index maps, Index pixels, Index images, Index back)
{
    enum { SIDE = {SIDE} };
    __shared__ Element tile[SIDE][SIDE + 1];
    const Index wide = maps * pixels, across = (images + SIDE - 1) / SIDE, tiles = (wide + SIDE - 1) / SIDE * across;
    const Index lane = threadIdx.x % SIDE;
    for (Index t = blockIdx.x; t < tiles; t += gridDim.x) {
        const Index first = t / across * SIDE, image = t % across * SIDE;
        for (Index k = threadIdx.x / SIDE; k < SIDE; k += blockDim.x / SIDE) {
            const Index j = first + (back ? lane : k), n = image + (back ? k : lane);
            if (j < wide && n < images)
                tile[k][lane] = from[back ? n * wide + j : (j % maps * pixels + j / maps) * images + n];
        }
        __syncthreads();
        for (Index k = threadIdx.x / SIDE; k < SIDE; k += blockDim.x / SIDE) {
            const Index j = first + (back ? k : lane), n = image + (back ? lane : k);
            if (j < wide && n < images)
                to[back ? (j % maps * pixels + j / maps) * images + n : n * wide + j] = tile[lane][k];
        }
        __syncthreads();
    }
}
""",
    SIDE=str(SIDE),
)


class Rooms(Launching):
    """What keeps images apart on a card."""

    trees_apart = True

    @property
    def has_rooms(self) -> bool:  # type: ignore[override]
        """Whether images may lie in rooms: where there is cuDNN, which prefers them so."""
        return getattr(getattr(self.runtime, "driver", None), "cudnn", None) is not None

    def room(self, like: Any) -> tuple[Any, Any]:
        """Return a row of as many elements as another, and its entry in the ledger."""
        more = "images that lie apart", like.nbytes, lambda: self.runtime.driver.allocate(like.nbytes).view(like.dtype)
        found: tuple[Any, Any] = self.runtime.taken("workspaces", *more)
        return found

    def turn(self, form: Form, array: Any, room: Any, back: bool) -> None:
        """Copy images from (C, D, H, W, N) to a room, or back."""
        maps, pixels, images = form
        tiles = -(-maps * pixels // SIDE) * -(-images // SIDE)
        if tiles:
            pair = (array, room) if back else (room, array)
            self.launch(TURN, str(array.dtype), (min(tiles, BLOCKS), 1), [*pair, *form, int(back)])

    def apart(self, purpose: str, x: Any) -> Any:
        """Return images as they lie apart, copied there unless they do: to the room of their memory, or to one here."""
        if isinstance(x, Images) and (stored := brought(x.tensor, x.form, self)):
            return stored.room
        array = read_images(x)
        place = self.scratch(purpose, (array.size,), array)
        self.turn(form_of(array), array, place, False)
        return place
