// Package suite runs gomqtt's acceptance tests against the broker at BROKER_URL.
package suite

import (
	"os"
	"testing"
	"time"

	"github.com/256dpi/gomqtt/spec"
)

func TestSpec(t *testing.T) {
	config := spec.AllFeatures()
	config.URL = os.Getenv("BROKER_URL")
	config.DenyURL = os.Getenv("BROKER_DENY_URL")
	config.ProcessWait = 50 * time.Millisecond
	config.MessageRetainWait = 200 * time.Millisecond
	config.NoMessageWait = 100 * time.Millisecond
	spec.Run(t, config)
}
