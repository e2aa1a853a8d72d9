package golden

import "testing"

// TestChange: the text has all values that differ, and no others.
func TestChange(t *testing.T) {
	type object struct {
		Same, Other string
		Gone, Came  *int `json:",omitempty"`
		List        []map[string]bool
	}
	one := 1
	before := object{Same: "a", Other: "b", Gone: &one, List: []map[string]bool{{"x": true}}}
	after := object{Same: "a", Other: "c", Came: &one, List: []map[string]bool{{"x": true}, {"y": false}}}
	const want = "  Came: 1\n  Gone: 1 is gone\n  List[1].y: false\n  Other: \"c\", was \"b\"\n"
	if got := Change(t, before, after); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := Change(t, nil, object{Same: "a"}); got != "  Other: \"\"\n  Same: \"a\"\n" {
		t.Errorf("change from nil:\n%s", got)
	}
	if got := Change(t, before, before); got != "" {
		t.Errorf("change of equal objects:\n%s", got)
	}
}
