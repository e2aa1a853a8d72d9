package mount

import (
	"fmt"
	"strings"
)

// Allowed is what a mount at a path of the host lets the volume's files do:
// programs change the user, and devices be opened.
type Allowed struct{ SUID, Dev bool }

// HostOptions reads the options of a mount at a path of the host, "suid" and
// "dev" and their contraries, with commas. What is not asked for is not allowed.
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
