"""What a step warns of before it is captured is noted of its own thread."""

import threading
import warnings

from vision_attn.fast.graphs import own_warnings


def test_warnings_of_this_thread_are_collected_and_others_shown() -> None:
    filters, shown = list(warnings.filters), warnings.showwarning
    with warnings.catch_warnings(record=True) as others:
        warnings.simplefilter("always")
        with own_warnings() as found:
            warnings.warn("one", stacklevel=1)
            other = threading.Thread(target=warnings.warn, args=("of the other",))
            other.start()
            other.join()
            warnings.warn("two", stacklevel=1)
        warnings.warn("after", stacklevel=1)
    assert [str(one.message) for one in found] == ["one", "two"] and found[0].filename == __file__
    assert [str(one.message) for one in others] == ["of the other", "after"]
    assert warnings.filters == filters and warnings.showwarning is shown


def test_threads_collect_one_after_the_other_and_leave_warnings_as_they_were() -> None:
    filters, shown, start = list(warnings.filters), warnings.showwarning, threading.Barrier(4)
    counts: list[set[str]] = []

    def collect(name: str) -> None:
        start.wait()
        for _ in range(50):
            with own_warnings() as found:
                warnings.warn(name, stacklevel=1)
            counts.append({str(one.message) for one in found} ^ {name})

    threads = [threading.Thread(target=collect, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [set()] * 200 and warnings.filters == filters and warnings.showwarning is shown
