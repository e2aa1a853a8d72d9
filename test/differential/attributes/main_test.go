package attributes

import (
	"os"
	"testing"

	"volplane.dev/volplane/test/internal/servers"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }
