package mount

import (
	"strings"
	"testing"
)

func TestHostOptions(t *testing.T) {
	for text, want := range map[string]Allowed{
		"": {}, "suid": {SUID: true}, "dev": {Dev: true}, "suid,dev": {true, true}, "dev,suid": {true, true},
		"nosuid,nodev": {}, "suid,nosuid": {}, "nodev,dev": {Dev: true},
	} {
		if got, err := HostOptions(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"ro", "suid,", ",", "suid dev", "SUID", "nonosuid", "suid,exec", "dev,bind"} {
		if got, err := HostOptions(text); err == nil || got != (Allowed{}) || !strings.Contains(err.Error(), "nosuid") {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}
