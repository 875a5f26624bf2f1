from router.contract.diagram import join_diagram, state_diagram


def test_a_diagram_has_a_start_its_edges_and_its_ends() -> None:
    drawn = state_diagram("A", [("A", "B", "x"), ("A", "B", "y"), ("B", "B", "z")], ["B", "C"])
    assert drawn.splitlines() == [
        "stateDiagram-v2",
        "    [*] --> A",
        "    A --> B: x<br/>y",
        "    B --> B: z",
        "    B --> [*]",
        "    C --> [*]",
    ]


def test_join_shows_effects_and_leaves_out_rows_that_do_nothing() -> None:
    lines = join_diagram().splitlines()
    assert "    SEATED --> MATCHED: Prefilled [Write]" in lines
    assert "    VOID --> VOID: Registered [FreeSeats]<br/>Prefilled [FreeKV]" in lines
    assert not any(line.startswith("    LANDED --> LANDED") for line in lines)
