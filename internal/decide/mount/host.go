package mount

import (
	"fmt"
	"strings"
)

// Allowed are the options of a mount at a host path: whether programs may change the user, and devices
// may be opened.
type Allowed struct{ SUID, Dev bool }

// HostOptions parses the options of a mount at a host path: "suid", "dev", "nosuid" and "nodev",
// separated by commas. Without them, neither is allowed.
func HostOptions(text string) (Allowed, error) {
	if text == "" {
		return Allowed{}, nil
	}
	var a Allowed
	for option := range strings.SplitSeq(text, ",") {
		word, no := strings.CutPrefix(option, "no")
		switch word {
		case "suid":
			a.SUID = !no
		case "dev":
			a.Dev = !no
		default:
			return Allowed{}, fmt.Errorf("option %.80q: there are suid, nosuid, dev and nodev", option)
		}
	}
	return a, nil
}
