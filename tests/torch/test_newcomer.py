"""A newcomer's convolutional network on handwritten digits: only the device string changes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

Run = Callable[..., subprocess.CompletedProcess[str]]

SCRIPT = """
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from sklearn.datasets import load_digits
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset, random_split


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, 1, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(288, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = self.dropout2(x)
        return F.log_softmax(self.fc2(x), dim=1)


def train(model, device, loader, optimizer):
    model.train()
    for data, target in loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()


def test(model, device, loader):
    model.eval()
    test_loss = 0
    correct = 0
    with torch.no_grad():
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            prediction = output.argmax(dim=1, keepdim=True)
            correct += prediction.eq(target.view_as(prediction)).sum().item()
    return test_loss / len(loader.dataset), correct / len(loader.dataset)


torch.manual_seed(1)
device = torch.device("DEVICE")
images, labels = load_digits(return_X_y=True)
images = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
images = (images - images.mean()) / images.std()
dataset = TensorDataset(images, torch.tensor(labels))
train_set, test_set = random_split(dataset, [1500, len(dataset) - 1500])
train_loader = DataLoader(train_set, batch_size=50, shuffle=True)
test_loader = DataLoader(test_set, batch_size=100)
model = Net().to(device)
optimizer = optim.Adadelta(model.parameters(), lr=1.0)
scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
for epoch in range(1, 4):
    train(model, device, train_loader, optimizer)
    loss, accuracy = test(model, device, test_loader)
    scheduler.step()
torch.save(model.state_dict(), "digits_cnn.pt")
fresh = Net()
fresh.load_state_dict(torch.load("digits_cnn.pt", map_location="cpu"))
print(next(model.parameters()).device, accuracy, test(fresh, "cpu", test_loader)[1])
"""


@pytest.mark.parametrize("device", ["cpu", "neuron"])
def test_only_the_device_string_changes(device: str, run_python: Run, tmp_path: object) -> None:
    result = run_python(SCRIPT.replace("DEVICE", device), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    place, accuracy, of_saved = result.stdout.split()
    assert place == ("cpu" if device == "cpu" else "neuron:0")
    assert float(accuracy) > 0.95
    assert float(of_saved) == pytest.approx(float(accuracy), abs=0.01)
