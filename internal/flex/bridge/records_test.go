package bridge

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/durable/durabletest"
	"volplane.dev/volplane/internal/flex/host"
)

// TestRecords: the bridge's are records as others are. A path of an id, whatever
// that is, stays below the directory.
func TestRecords(t *testing.T) {
	t.Parallel()
	name := decide.Name{Vendor: "example.com", Driver: "lofs"}
	kind := recordKind()
	kind.Most = 8 << 10
	durabletest.Records(t, kind,
		&record{
			Format: format, Kind: staged, Driver: name, Volume: "../../x", Place: "/s", Step: done, Mounted: true,
			Options: map[string]string{"a": "b"},
		},
		&record{Format: format, Kind: made, Driver: name, Volume: "b", Step: done})
}

// TestEarlierRecords: records that the first version of the bridge wrote are read.
func TestEarlierRecords(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data, err := os.ReadFile("testdata/format1.json")
	if err != nil {
		t.Fatal(err)
	}
	name := decide.Name{Vendor: "example.com", Driver: "lofs"}
	path := filepath.Join(dir, "lofs.example.com/attached/6e1fe8a57f65e7f266f5b9318ee3dc61.json")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := openRecords(dir, &host.Host{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	// It is of an earlier boot.
	want := &record{
		Format: format, Kind: attached, Driver: name, Volume: "pv-1", Place: "n1", Step: attaching,
		Name: "data", DetachName: "data", FSType: "ext4", Options: map[string]string{"file": "data"},
		Pod: decide.PodInfo{Name: "p"}, Device: "/dev/loop0",
	}
	got := all.get(name, attached, "pv-1", "n1")
	if got != nil {
		got.Boot = ""
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
