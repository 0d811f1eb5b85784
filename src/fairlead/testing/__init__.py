"""For the tests of applications that use Fairlead (docs/how-to/testing.md).

    from fairlead.testing import FakeEndpoint, run

    async def test_a_story_has_a_picture(tmp_path):
        painter = FakeEndpoint({"image": "a harbour"})
        async with run(app, tmp_path, fakes={"draw_picture": painter}) as site:
            await tell_a_story(user="ada")          # your code, which submits jobs to `app`
            await site.drain()
        assert painter.calls[0]["prompt"] == "a harbour"

`pytest_plugins = ["fairlead.testing.plugin"]` in a conftest.py makes the same available as the fixture `fairlead_run`.
"""

from fairlead.testing.fakes import FakeEndpoint, Hangs, Takes
from fairlead.testing.site import Site, run, temporary
from fairlead.testing.virtual_time import VirtualClock, in_virtual_time

__all__ = ["FakeEndpoint", "Hangs", "Site", "Takes", "VirtualClock", "in_virtual_time", "run", "temporary"]
