package mount

import (
	"strings"
	"testing"
)

func TestHostOptions(t *testing.T) {
	for text, want := range map[string]BindOptions{
		"": {}, "suid": {SUID: true}, "dev": {Dev: true}, "suid,dev": {SUID: true, Dev: true},
		"dev,suid": {SUID: true, Dev: true}, "nosuid,nodev": {}, "suid,nosuid": {}, "nodev,dev": {Dev: true},
		"ro": {ReadOnly: true}, "ro,rw": {}, "rw,ro": {ReadOnly: true}, "noexec": {NoExec: true}, "noexec,exec": {},
		"noatime,nodiratime": {NoAtime: true, NoDirAtime: true}, "noatime,relatime": {}, "noatime,atime": {},
		"nodiratime,diratime": {},
	} {
		got, err := HostOptions(text)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
		if again, err := HostOptions(got.String()); err != nil || again != want {
			t.Errorf("%q: its string is %q", text, got)
		}
	}
	for _, text := range []string{
		"remount", "suid,", ",", "suid dev", "SUID", "nonosuid", "suid,sync", "dev,bind", "norw",
	} {
		got, err := HostOptions(text)
		if err == nil || got != (BindOptions{}) || !strings.Contains(err.Error(), "nosuid") {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	if got := (BindOptions{Dev: true, ReadOnly: true, NoAtime: true, SUID: true}).String(); got != "dev,noatime,ro,suid" {
		t.Errorf("the words are in another order: %s", got)
	}
}
