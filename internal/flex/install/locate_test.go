package install

import "testing"

// TestLocate: a path or a name.
func TestLocate(t *testing.T) {
	t.Parallel()
	for subject, want := range map[string][2]string{
		"/x/example.com~lofs/lofs": {"/x/example.com~lofs/lofs", "example.com/lofs"},
		"/x/lofs":                  {"/x/lofs", "lofs"},
		"/x/other~lofs/fs":         {"/x/other~lofs/fs", "fs"},
		"example.com/lofs":         {"/plugins/example.com~lofs/lofs", "example.com/lofs"},
		"lofs":                     {"/plugins/lofs/lofs", "lofs"},
		"/x/lo fs":                 {},
		"Example.com/lofs":         {},
		"example.com/../lofs":      {},
		"":                         {},
	} {
		path, name, err := locate(subject, "/plugins")
		if want[0] == "" {
			if err == nil {
				t.Errorf("%q: %s", subject, path)
			}
			continue
		}
		if err != nil || path != want[0] || name.String() != want[1] {
			t.Errorf("%q: %s %s %v", subject, path, name, err)
		}
	}
}
