"""The headline results, from tables whose figures are known."""

import pytest

from reproduction import headlines, report
from reproduction.catalogue import load_catalogue
from reproduction.settings import DATA
from reproduction.tables import markdown_table, read_table

CATALOGUE = load_catalogue()


def read(tables):
    return headlines.headlines(tables)


def table(tmp_path, *rows):
    text = "\n".join(("# command: python a.py", "# date: 2026-01-02", *rows))
    path = tmp_path / "t.csv"
    tmp_path.mkdir(exist_ok=True)
    path.write_text(text + "\n")
    return read_table(path)


def test_headlines_of_what_is_not_there_are_left_out(tmp_path):
    assert read({}) == []
    assert read({"pruning/figure3": table(tmp_path, "a", "1")}) == []


def test_a_challenge_is_held_against_its_goal(tmp_path):
    rows = ["method,norm,attack,ratio,verdict"]
    rows += ["fused,linf,model alone,1,credible", "fused,linf,model and detector,1.5,credible"]
    rows += ["stable,l2,model and detector,3,not credible: without a bound, every image"]
    rows = [row.replace("bound, every", "bound every") for row in rows]
    found = read({"detection/challenge/lenet5-mnist": table(tmp_path, *rows)})
    assert [(row.case, row.reached) for row in found] == [
        ("fused, L∞", False),
        ("stable, L2", False),
    ]
    assert found[0].here == "1.50 times"
    assert found[1].here.endswith("not credible")


def test_detection_is_beside_the_papers(tmp_path):
    rows = ("method,attack,f1,paper_f1", "fused,A,0.9,0.9", "fused,Average,0.92,0.91")
    rows += ("logit margin,Average,0.99,", "stable,Average,0.5,0.91")
    found = read({"detection/lenet5-mnist": table(tmp_path, *rows)})
    assert [(row.case, row.here, row.published, row.reached) for row in found] == [
        ("fused", "0.92", "0.91", True),
        ("stable", "0.50", "0.91", False),
    ]
    assert {row.entry for row in found} == {"nnslicer/table4"}


def test_stable_says_beside_its_figure_that_test_images_were_seen(tmp_path):
    rows = ("method,attack,f1,paper_f1", "stable,Average,0.932,0.91", "photos,Average,0.9,0.91")
    tables = {"detection/resnet10-cifar10": table(tmp_path, *rows)}
    said = "0.93 (its last vote was added after seeing test images, "
    assert [row.here for row in read(tables)] == [f"{said}no fresh ones)", "0.90"]
    (fresh := tmp_path / "fresh").mkdir()
    rows = ("method,attack,f1,paper_f1", "stable,Average,0.871,0.91")
    tables["detection/resnet10-cifar10-from500"] = table(fresh, *rows)
    assert read(tables)[0].here == f"{said}0.87 on fresh ones with 16 attacks)"


def test_times_are_beside_the_papers(tmp_path):
    rows = ("model,backward ms", "lenet,0.66", "resnet18,99999")
    found = read({"benchmarks/slicing": table(tmp_path, *rows)})
    assert [(row.case, row.here, row.published, row.reached) for row in found] == [
        ("LeNet", "0.66", "300", True),
        ("ResNet18", "1e+05", "40,400", False),
    ]
    assert "backward walk alone" in found[0].what  # the forward pass is not in "backward ms"


def test_restructuring_is_beside_the_papers_gain(tmp_path):
    semantic = "NeuSemSlice+LAMP", '"NeuSemSlice, centred+LAMP"'
    rows = ("method,CR", "LAMP,0.8", f"{semantic[0]},0.85", f"{semantic[1]},0.84")
    tests = ["method,against,figure,p_value", f"{semantic[0]},LAMP,NI,0.9"]
    tests += [f"{semantic[0]},Global+LAMP,CR,0.8", f"{semantic[0]},LAMP,CR,0.012"]
    tests += [f"{semantic[1]},LAMP,CR,0.3"]
    name = "semantic/table5-10permille-alexnet-cifar10-interval64"
    found = read({name: table(tmp_path, *rows)})
    assert found == []  # without the tests
    both = {name: table(tmp_path, *rows), f"{name}-tests": table(tmp_path, *tests)}
    found = read(both)  # the paper's gain is 34.88 - 30.17 points
    assert [(row.case, row.here, row.published, row.reached) for row in found] == [
        ("NeuSemSlice+LAMP", "+5.0 points (p = 0.012)", "+4.7 points", True),
        ("NeuSemSlice, centred+LAMP", "+4.0 points (p = 0.3)", "+4.7 points", False),
    ]
    assert "64 neurons at a time" in found[0].what


def test_development_is_beside_the_papers_mean(tmp_path):
    rows = ("method,Avg,Avg known,paper Avg", "NeuSemSlice,0.36,0.87,0.8613", "Global,0.3,0.6,0.8")
    for scenario in (7, 8):
        name = f"semantic/table{scenario}-alexnet-cifar10-interval64"
        found = read({name: table(tmp_path, *rows)})
        assert [(row.here, row.published, row.reached) for row in found] == [
            ("36.0%", "86.1%", False),
            ("87.0%", "86.1%", True),
        ]
        assert "AlexNet" in found[0].what and found[0].case.startswith(f"{scenario - 5} tasks")
        assert {row.entry for row in found} == {f"neusemslice/table{scenario}"}


def test_missed_goals_are_shown(tmp_path):
    rows = ("method,budget,targets,attacks", "NNSlicer,1000,0.294,2", "NNSlicer,2000,0.09,2")
    found = read({"protection/figure5": table(tmp_path, *rows)})
    assert [(row.case, row.here) for row in found] == [
        ("1,000 images, mean of 2", "29.4%"),
        ("2,000 images, mean of 2", "9.0%"),
    ]
    assert headlines.headline_table(found)["as good"].tolist() == ["no", "yes"]


def test_protection_over_more_sets_comes_first(tmp_path):
    few = ("method,budget,targets,attacks", "NNSlicer,1000,0.1,2", "NNSlicer,45000,0.6,2")
    many = ("method,budget,targets,attacks", "NNSlicer,1000,0.2,16")
    tables = {
        "protection/figure5": table(tmp_path / "few", *few),
        "protection/eight-sets/figure5": table(tmp_path / "many", *many),
    }
    assert [(row.case, row.here) for row in read(tables)] == [
        ("1,000 images, mean of 16", "20.0%"),
        ("45,000 images, mean of 2", "60.0%"),
    ]


def test_attackers_who_have_images_alone_are_beside(tmp_path):
    rows = ("method,budget,targets,attacks", "NNSlicer,1000,0.2,2", "Everything,1000,0.27,2")
    first, second = read({"protection/figure5": table(tmp_path, *rows)})
    assert (first.case, first.here) == ("1,000 images, mean of 2", "20.0%")
    assert (second.case, second.here) == ("1,000 images, mean of 2", "27.0%")
    assert (first.reached, second.reached) == (False, None)


def test_the_papers_own_search_is_the_first(tmp_path):
    rows = ["pair,method,paper_pair,success_rate,mean_queries,paper_success,paper_queries"]
    rows += ["lenet1,DFlare,LeNet-1,1,21,1,84", "lenet1,Algorithm 1,LeNet-1,0.99,90,1,84"]
    rows += ["lenet1,DiffChaser,LeNet-1,1,2501,0.99,5812"]
    found = read({"dflare/search": table(tmp_path, *rows)})
    assert [(row.case, row.here, row.reached) for row in found] == [
        ("LeNet-1: the paper's search", "99.0%", False),
        ("LeNet-1: ours, with halving and patience", "100.0%", True),
        ("LeNet-1: the paper's search", "90.0", False),
        ("LeNet-1: ours, with halving and patience", "21.0", True),
    ]

    rows = ["pair,method,improvement_ratio,paper_improvement_ratio"]
    rows += ["lenet1,DFlare,0.84,0.3", "lenet1,Algorithm 1,0.2,0.3", "digits_cnn,DFlare,0.7,"]
    found = read({"dflare/repair": table(tmp_path, *rows)})
    assert [(row.here, row.reached) for row in found] == [("20%", False), ("84%", True)]


def test_repaired_models_should_be_harder_to_search(tmp_path):
    rows = ["pair,method,mean_queries,paper_queries"]
    rows += ['a,"Algorithm 1, without repair",10,18', 'a,"Algorithm 1, with repair",25.55,55.7']
    rows += ['a,"DFlare, without repair",9,18', 'a,"DFlare, with repair",8,55.7']
    rows += ['own,"Algorithm 1, without repair",6,', 'own,"Algorithm 1, with repair",5,']
    rows += ['own,"DFlare, without repair",5,', 'own,"DFlare, with repair",7,']
    found = read({"dflare/repair_search": table(tmp_path, *rows)})
    assert [(row.here, row.published, row.reached) for row in found] == [
        ("10.0 → 25.6", "18.0 → 55.7", True),
        ("9.0 → 8.0", "18.0 → 55.7", False),
        ("6.0 → 5.0", "harder", False),
        ("5.0 → 7.0", "harder", True),
    ]


def test_repaired_models_that_the_paper_does_not_have_should_be_harder_to_search_too(tmp_path):
    rows = ["pair,method,mean_queries"]
    rows += ['own,"Algorithm 1, without repair",6', 'own,"Algorithm 1, with repair",5']
    rows += ['own,"DFlare, without repair",5', 'own,"DFlare, with repair",7']
    found = read({"dflare/repair_further_search": table(tmp_path, *rows)})
    assert [(row.here, row.published, row.reached) for row in found] == [
        ("6.0 → 5.0", "harder", False),
        ("5.0 → 7.0", "harder", True),
    ]


def test_semantic_slices_are_held_against_the_papers_tests(tmp_path):
    """The paper finds them better than global slices (p < 0.05), and no better than the others."""
    rows = ["settings,metric,method,against,gain,p_value,repeats"]
    rows += ["all,taylor,NeuSemSlice,Global,0.02,0.2,5"]
    rows += ["all,taylor,NeuSemSlice,Category-wise,-0.01,0.2,5"]
    rows += ['all,taylor,"NeuSemSlice, centred",Global,0.07,0.01,5']
    rows += ['all,taylor,"NeuSemSlice, centred",Category-wise,-0.03,0.01,5']
    rows += ["paper,taylor,NeuSemSlice,Global,0.5,0.001,5"]
    found = read({"semantic/table4-mlp-mnist": table(tmp_path, *rows)})
    assert [
        (row.here, row.published, row.reached) for row in found if "by metric" not in row.what
    ] == [
        ("+2.0 points (p = 0.2)", "p < 0.05", False),
        ("-1.0 points (p = 0.2)", "p > 0.05", True),
        ("+7.0 points (p = 0.01)", "p < 0.05", True),
        ("-3.0 points (p = 0.01)", "p > 0.05", False),
    ]
    assert "as printed" in found[0].what and "centred" in found[2].what


def test_one_model_confirms_no_test(tmp_path):
    rows = ["settings,metric,method,against,gain,p_value,repeats"]
    rows += ["all,taylor,NeuSemSlice,Global,0.02,,1", "all,taylor,NeuSemSlice,Category-wise,,,0"]
    rows += ['all,taylor,"NeuSemSlice, centred",Global,-0.07,,1']
    rows += ['all,taylor,"NeuSemSlice, centred",Category-wise,0.01,,1']
    found = read({"semantic/table4-vgg16-cifar10": table(tmp_path, *rows)})
    assert [(row.here, row.reached) for row in found if "by metric" not in row.what] == [
        ("+2.0 points (one model)", None),
        ("-7.0 points (one model)", False),
        ("+1.0 points (one model)", None),
    ]


@pytest.mark.parametrize(("repeats", "reached"), [(1, None), (5, True)])
def test_semantic_slices_are_as_good_if_every_metric_says_so(tmp_path, repeats, reached):
    rows = ["settings,metric,counted,method,against,gain,p_value,repeats"]
    both, into = "weights in and out", "weights in"
    for metric, gain in (("avg", -0.1), ("var", 0.2)):
        rows.append(f"all,{metric},{both},NeuSemSlice,Global,{gain},,{repeats}")
        rows.append(f'all,{metric},{both},"NeuSemSlice, centred",Global,{abs(gain)},,{repeats}')
        rows.append(f"paper,{metric},{both},NeuSemSlice,Global,0.5,,{repeats}")
        rows.append(f"all,{metric},{into},NeuSemSlice,Global,0.5,,{repeats}")
        rows.append(f"all,{metric},{both},NeuSemSlice,Category-wise,0.5,,{repeats}")
    tables = {"semantic/all-images/table4-alexnet-cifar10": table(tmp_path, *rows)}
    found = [row for row in read(tables) if "by metric" in row.what]
    assert [(row.case, row.here, row.reached) for row in found] == [
        ("as printed", "avg -10.0, var +20.0", False),
        ("centred", "avg +10.0, var +20.0", reached),
    ]


def test_headlines_lead_to_the_catalogue():
    rows = read(report.tables_by_name(DATA / "results"))
    assert rows and {row.entry for row in rows} <= {entry.id for entry in CATALOGUE.entries}


def test_every_function_has_rows_in_the_committed_tables():
    """A function that asks for other names than its tables have would hide its headlines."""
    tables = report.tables_by_name(DATA / "results")
    for entry, function in headlines.HEADLINES:
        assert list(function(tables)), (entry, function.__name__)
    page = (DATA / "results/report/report.md").read_text(encoding="utf-8")
    of_page = page.split("## All headlines")[1].split("</details>")[0]
    assert markdown_table(headlines.headline_table(read(tables))) in of_page


@pytest.mark.parametrize("missing", ["f1", "paper_f1", "method"])
def test_a_table_that_lacks_a_column_gives_no_rows(tmp_path, missing):
    rows = {"method": "fused", "attack": "Average", "f1": "0.9", "paper_f1": "0.9"}
    del rows[missing]
    lines = (",".join(rows), ",".join(rows.values()))
    assert read({"detection/lenet5-mnist": table(tmp_path, *lines)}) == []


def test_the_page_of_results_is_short_and_all_that_it_names_is_there():
    chosen = report.chosen_table(read(report.tables_by_name(DATA / "results")))
    assert len(chosen) == len(CATALOGUE.chosen) <= 25
    figures = [len(one["cases"]) for one in CATALOGUE.chosen]
    assert [len(text.split("; ")) for text in chosen["here"]] == figures
    assert set(chosen["reproduced"]) == {"yes", "no", "in part", "–"}
