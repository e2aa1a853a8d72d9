package golden

import "testing"

// TestChange: what is as it was is not told, all else is.
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
		t.Errorf("of nothing becomes\n%s", got)
	}
	if got := Change(t, before, before); got != "" {
		t.Errorf("nothing becomes of it but\n%s", got)
	}
}
